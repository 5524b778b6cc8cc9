"""What the DQN example needs beside learning and playing.

team    the actor processes, and the Ctrl-C that ends them
record  what a run was: episodes, and time by stage
report  progress while it runs, the table at its end
plot    the picture
"""
