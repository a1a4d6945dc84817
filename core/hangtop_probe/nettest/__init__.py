"""This node's part of a test of the network."""
