"""The commands that build what is given to users: `run --help` lists them. Not part of the package."""
