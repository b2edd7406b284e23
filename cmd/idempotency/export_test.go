package main

// Program and Run give tests access to the program.
var (
	Program = main
	Run     = runProgram
)
