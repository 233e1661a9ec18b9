"""What operators use and see, and changes of a running or restarted daemon."""
