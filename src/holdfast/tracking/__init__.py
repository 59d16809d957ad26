"""What happened, in bounded memory."""
