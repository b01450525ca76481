"""What ``posenc extend`` does: a real model with scaled frequencies, measured past the length it was trained at."""
