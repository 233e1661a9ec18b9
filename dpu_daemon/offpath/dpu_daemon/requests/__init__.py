"""Requests from a session's doorbell to the answer: sessions, the loop around the job book, copies, answers."""
