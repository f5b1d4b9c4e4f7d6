"""What the server tells about itself: its calls, metrics, log lines, the audit and traces."""
