"""The scripted roles in AppWorld: they sign in to apps, look ids up, and read an API's documentation when it refuses.

AppWorld's values are reached through other calls: tokens through passwords, ids through lists. The generic explorer
aims at one tool and repairs what its error asks for, which never signs in; these rules do, and what they know of
AppWorld are the names of a few APIs. Everything else is read from the world's own documentation at run time.
"""
