"""Commands that look at a job: one module per command, imported when it runs."""
