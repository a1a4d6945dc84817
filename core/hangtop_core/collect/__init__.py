"""Requests to nodes and their rates: requests, rounds, sampling."""
