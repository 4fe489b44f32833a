"""What is printed for people: tables and sizes."""
