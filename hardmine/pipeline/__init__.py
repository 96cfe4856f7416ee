"""From raw datasets to a patch store, and from a batch plan to pixels on a device."""
