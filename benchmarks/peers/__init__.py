"""What a user could pick instead of leafbeam, implemented as its paper describes it, to be measured in the same run."""
