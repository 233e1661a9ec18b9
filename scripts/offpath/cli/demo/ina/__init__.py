"""`offpath demo ina`: two training jobs share an emulated switch. Modules with torch in them say so and are imported
late."""
