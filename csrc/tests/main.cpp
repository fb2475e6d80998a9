#include "harness.h"
int main(int a,char**v){return g4test::run_all(a,v);}
