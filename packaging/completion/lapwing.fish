# lapwing completion fish > ~/.config/fish/completions/lapwing.fish
complete -c lapwing -a '(lapwing __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
