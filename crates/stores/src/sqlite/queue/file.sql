select file from hapax_queue_file where id = 1
