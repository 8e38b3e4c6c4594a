"""From a Hugging Face directory or GGUF file to a graph, its artifact and its config.pbtxt."""
