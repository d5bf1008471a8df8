// The engine behind the front library, and other functions whose names begin with "cu".
extern "C" {
int cudnnCreate(void**) {
  return 9;
}
int curl_easy_init() {
  return 1;
}
int cublasCreate_v2() {
  return 2;
}
int cufftPlan1d() {
  return 3;
}
int cuserid_() {
  return 4;
}
int cuMemAlloc_v2x() {
  return 5;
}  // longer than a hooked name
int cuMemAlloc_v() {
  return 6;
}  // shorter than one
int cu() {
  return 7;
}
}
