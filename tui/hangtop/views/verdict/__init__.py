"""Lines about verdicts, and the targets of their evidence."""
