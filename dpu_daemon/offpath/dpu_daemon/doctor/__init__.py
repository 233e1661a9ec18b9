"""What `offpath doctor` looks at on this machine. Nothing is changed, and nothing outside this machine is asked."""
