"""The peers that leafbeam is measured beside, each implemented as its paper describes it."""
