"""Reading a version of a table, in this process or by the client itself."""
