"""The request path from doorbell to answer: sessions, the job book's loop, copies, answers."""
