-- How often the operation @operation has failed.
SELECT attempts FROM hapax_attempt WHERE operation = @operation AND namespace = @namespace
