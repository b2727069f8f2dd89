select randomblob(16)
