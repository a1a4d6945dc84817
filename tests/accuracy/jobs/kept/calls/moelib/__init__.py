"""A small mixture of experts over an expert-parallel group."""
