"""`offpath demo ina`: two training jobs share an emulated switch. Modules that need torch are marked and imported
late.
"""
