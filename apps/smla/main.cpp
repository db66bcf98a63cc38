#include "program.h"

int main(int argc, char** argv) { return smla::run_smla(argc, argv); }
