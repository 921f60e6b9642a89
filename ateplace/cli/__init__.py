"""The commands that look: status, explain, doctor. They read the API like anybody else and write nothing."""
