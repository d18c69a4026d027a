"""report.html: how a job went, in one file that needs nothing else; and several jobs side by side."""
