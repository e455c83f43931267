"""What the machine gives: errors, files, hashes, processes, cores, progress."""
