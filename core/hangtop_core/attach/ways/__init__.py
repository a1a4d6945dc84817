"""Ways to a node: local, ssh, pdsh, a command; choice of nodes, and reasons of failed logins."""
