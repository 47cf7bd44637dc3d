"""The three APIs: requests, answers, events and errors, read, written and translated; pure."""
