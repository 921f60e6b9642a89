"""The verb preempt: decide which placeholders give way, and end them."""
