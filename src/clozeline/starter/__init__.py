"""What a new project begins with. In a checkout, the files that our own project has too are links to them."""
