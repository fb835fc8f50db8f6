"""Vision: networks that label pictures and volumes, from files through training and compression to files again."""
