from widestream.cli import main

main()
