"""Helpers that several test packages share: scripted clients, recordings, catalogs to serve."""
