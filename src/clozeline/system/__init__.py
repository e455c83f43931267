"""What every room needs of the operating system: files, processes, memory, progress, and the project's own errors."""
