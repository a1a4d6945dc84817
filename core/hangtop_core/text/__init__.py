"""Text for people: cleaning, times and sizes, sets of ranks and nodes, commands to paste."""
