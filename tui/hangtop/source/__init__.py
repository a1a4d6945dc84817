"""Where updates come from, and what the app holds between them."""
