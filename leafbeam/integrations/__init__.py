"""leafbeam inside other people's engines. Nothing here is imported by the rest of leafbeam."""
