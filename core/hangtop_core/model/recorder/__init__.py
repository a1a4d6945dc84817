"""Nouns about flight recorders and NCCL's RAS."""
