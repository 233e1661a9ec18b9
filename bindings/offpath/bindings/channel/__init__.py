"""What host channels share, whatever carries them."""
