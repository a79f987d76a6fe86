"""Remote tier: object stores, what lies in them, and who remembers which segment is where."""
