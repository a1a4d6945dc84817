"""What the actions do: a method `do_<id>` of the app for each that belongs to no single page."""
