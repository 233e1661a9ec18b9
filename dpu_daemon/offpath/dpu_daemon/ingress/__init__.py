"""Who is let in: negotiation, admission, and where tickets become sessions."""
