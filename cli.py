"""python cli.py ...: the same program as the console script `hardmine`."""

from hardmine.cli import main

if __name__ == "__main__":
    main()
