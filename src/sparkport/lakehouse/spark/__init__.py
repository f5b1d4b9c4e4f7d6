"""Spark as a child process or a server elsewhere, its sessions, and the rows that are staged for it."""
