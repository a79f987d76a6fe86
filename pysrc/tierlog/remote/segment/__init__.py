"""What lies in a store: keys, `.log` and `.indexes` objects, and how they are put and got."""
