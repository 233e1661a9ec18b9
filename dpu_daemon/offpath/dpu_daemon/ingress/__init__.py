"""Entry of requesters: negotiation, admission, and the fabric acceptors that turn tickets into sessions."""
