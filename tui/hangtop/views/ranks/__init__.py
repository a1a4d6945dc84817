"""Lines about ranks: lists, one rank, stacks, files."""
